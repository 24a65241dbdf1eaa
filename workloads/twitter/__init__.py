"""The Twitter-like workload of §4.2 of the TagMatch paper.

A stored set is one user's interest in one publisher: the hashtags of one of the publisher's tweets, translated to one
of the user's languages by a prefix (`fr_cat`), and for frequent writers the publisher itself as a tag (`@p42`). The
user's number is its key.
"""

from tagmatch.workloads.twitter.generate import Twitter as Twitter
from tagmatch.workloads.twitter.generate import sets as sets
from tagmatch.workloads.twitter.laws import Followed as Followed
from tagmatch.workloads.twitter.laws import TwitterOptions as TwitterOptions
