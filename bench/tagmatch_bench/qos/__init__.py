"""Messages with deadlines: scenarios of "Pub/Sub on Stream", a simulator of brokers that keep them, and real matching.

Pub/Sub on Stream: Z. Wang, Y. Zhang, X. Chang, X. Mi, Y. Wang, K. Wang, H. Yang, "Pub/Sub on Stream: A Multi-Core Based
Message Broker with QoS Support", DEBS 2012.
"""
