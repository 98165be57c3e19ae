"""Delivers a transactional producer's requests late, and shows whether that tears a transaction.

Knows Kafka's protocol and nothing of the programs that it is tried with. `README.md` says how.

    wire      requests and answers, as far as the proxy reads them
    proxy     a proxy in front of the brokers that holds a request, and delivers it later
"""
