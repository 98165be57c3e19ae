"""The decisions of an operator.

    partition   partition list, retry, skip, accept-gap, accept-truncation, repair-clock
    rules       rules list, activate
    calls       call unknown, resolve: tool calls whose outcome is unknown
    artifacts   artifact sweep: mark expired artifacts, remove them a week later
    people      session pause, resume, cancel, claim; question list, approve, deny
    ask_again   session ask-again: open requests are sent again
    moves       session move, moves, drain: sessions move between services
    spool       spool list, verify, drain

The outcome of a call is sent as an event, with the tenant's token. The commands of partitions,
rules and people ask the control API of any processor, with the operator's token.
"""
