"""What a worker's connections are secured with, where librdkafka does not do it.

    member_credentials    the group member's TLS and SASL, from the settings of librdkafka
    bearer_tokens         tokens of SASL mechanism OAUTHBEARER for the group's member

librdkafka secures every other connection to Kafka by itself.
"""
