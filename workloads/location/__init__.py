"""The workload of CLCB: subscriptions with an area, messages with a position, and areas that move.

CLCB: G. Cugola, A. Margara, "High-Performance Location-Aware Publish-Subscribe on GPUs", Middleware 2012.

Names of attributes are correlated. With independent ones the paper's numbers contradict each other: a message has 3 to
5 of 100 names and a filter constraints on 3 to 5, so the message has all names of the filter with probability
C(m, k) / C(100, k) for m and k names; over the nine cases that are as likely, 0.001 % in the mean, and 0.006 % in the
best one (m = 5, k = 3). Yet 0.5 % of the messages are to satisfy a filter, 477 times as many, before any value has been
looked at. So here the names are shared out to topics of five, and a filter, as a message, takes its names from one of
them. Of 20 topics, 1 in 20 messages has the filter's; it then has all of the filter's names with probability 0.411; so
the constraints have to hold for 24 % of these, each of them with probability 0.69.
"""

from tagmatch.workloads.location.generate import Location as Location
from tagmatch.workloads.location.options import SCENARIOS as SCENARIOS
from tagmatch.workloads.location.options import LocationOptions as LocationOptions
