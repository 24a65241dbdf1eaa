"""Messages with deadlines: channels, the scenarios of "Pub/Sub on Stream", and a simulator of brokers that keep them.

Pub/Sub on Stream: Z. Wang, Y. Zhang, X. Chang, X. Mi, Y. Wang, K. Wang, H. Yang, "Pub/Sub on Stream: A Multi-Core Based
Message Broker with QoS Support", DEBS 2012.
"""

from tagmatch.model.options import Channel as Channel
from tagmatch_bench.qos.options import SCENARIOS as SCENARIOS
from tagmatch_bench.qos.options import QosOptions as QosOptions
from tagmatch_bench.qos.simulator import POLICIES as POLICIES
from tagmatch_bench.qos.simulator import ChannelResult as ChannelResult
from tagmatch_bench.qos.simulator import simulate as simulate
