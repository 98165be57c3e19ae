"""Alerts on what processors say of themselves; pure."""

from sessionary.infra.alerts.alert import Alert, AlertGroup, Severity, risen_counter

_QUIET = "sessionary_processor_quiet_partitions > 0"
_DUE = "max by (instance, partition) (sessionary_processor_timers_due)"
_FIRED = "sum by (instance) (increase(sessionary_processor_timers_fired_total[2m])) > 0"
_UNKNOWN = 'sessionary_processor_tool_calls{state="unknown"}'

PROCESSOR_ALERTS = AlertGroup(
    "sessionary-processor",
    (
        Alert(
            "SessionaryPartitionHalted",
            "max by (instance, reason) (sessionary_processor_partitions_halted) > 0",
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} partitions of {{ $labels.instance }} are halted: {{ $labels.reason }}",
            "The processor {{ $labels.instance }} cannot go on without a loss that an operator must know of. Events "
            "of these partitions wait in the log; the other partitions go on.",
        ),
        Alert(
            "SessionaryOpenTransaction",
            "max by (instance, partition) (sessionary_processor_held_records) > 0",
            "",
            Severity.PAGE,
            "an open transaction holds partition {{ $labels.partition }} up: {{ $value }} records wait",
            "Another producer has begun a transaction on the events topic and not ended it. Processors and sinks read "
            "nothing of partition {{ $labels.partition }} behind it, so its sessions stand still.",
        ),
        Alert(
            "SessionaryStateCorrupt",
            risen_counter('sessionary_processor_state_hash_mismatches_total{source!="agent"}', ["instance"])
            + "\nor sum by (instance) (sessionary_processor_partitions_halted"
            '{reason=~"changelog_incomplete|changelog_unreadable"}) > 0',
            "",
            Severity.PAGE,
            "{{ $labels.instance }} found state that is not what was recorded",
            "A local store or a changelog does not have the checksum that was recorded of it, or the changelog cannot "
            "be read. The processor {{ $labels.instance }} found {{ $value | humanize }} of them.",
        ),
        Alert(
            "SessionaryJudgeErrors",
            risen_counter('sessionary_processor_errors_total{kind="judge"}', ["instance"]),
            "",
            Severity.PAGE,
            "{{ $labels.instance }} failed to judge events",
            "The processor's own code failed at events; they are refused as internal_error. Events: "
            "{{ $value | humanize }}.",
        ),
        Alert(
            "SessionarySecurityRefusals",
            risen_counter(
                'sessionary_processor_refused_total{security="true"}', ["reason"], above="$security_refusals"
            ),
            "",
            Severity.TICKET,
            "events were refused for security: {{ $labels.reason }}",
            "Within ${window_s} s, {{ $value | humanize }} events were refused with the reason {{ $labels.reason }}: "
            "their sender reported what it may not.",
        ),
        Alert(
            "SessionaryTimersStuck",
            f"(\n  {_DUE} > $timers_due\n  or ({_DUE} > 0 unless on (instance) {_FIRED})\n)\n"
            f"unless on (instance) {_QUIET}",
            "page_for_s",
            Severity.PAGE,
            "{{ $value }} timeouts of partition {{ $labels.partition }} are due and do not fire",
            "Deadlines of partition {{ $labels.partition }} are past by the clock of {{ $labels.instance }}, and "
            "none fires, or too many wait. Dead sessions keep what they hold.",
        ),
        Alert(
            "SessionaryTimersLate",
            "histogram_quantile(0.95, sum by (instance, le) "
            "(rate(sessionary_processor_timer_wall_lateness_seconds_bucket[${window_s}s]))) > $timer_lateness_s",
            "ticket_for_s",
            Severity.TICKET,
            "timeouts of {{ $labels.instance }} fire late",
            "One of twenty timeouts fires more than {{ $value | humanizeDuration }} after its deadline; the limit is "
            "${timer_lateness_s} s.",
        ),
        Alert(
            "SessionaryTimeoutGuard",
            "max by (instance) (sessionary_processor_quiet_partitions) > 0",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $value }} partitions of {{ $labels.instance }} hold their timeouts back",
            "The log has silences, so the processor {{ $labels.instance }} cannot tell a dead agent from a broken "
            "connection. No session of these partitions times out meanwhile.",
        ),
        Alert(
            "SessionaryToolCallsUnresolved",
            f"sum(min_over_time({_UNKNOWN}[${{window_s}}s]) and {_UNKNOWN} offset ${{window_s}}s) > 0",
            "",
            Severity.TICKET,
            "{{ $value }} tool calls wait for people to say what came of them",
            "For ${window_s} s and longer, the outcome of {{ $value | humanize }} reserved tool calls has been "
            "unknown. A run with such a call that changes something outside is held until the call is resolved.",
        ),
        Alert(
            "SessionaryClockLeap",
            "max by (instance, partition) (sessionary_processor_clock_ahead_seconds) > $clock_ahead_s",
            "",
            Severity.PAGE,
            "the clock of partition {{ $labels.partition }} is {{ $value | humanizeDuration }} ahead",
            "The broker stamps events of partition {{ $labels.partition }} ahead of the clock of "
            "{{ $labels.instance }}, by {{ $value | humanizeDuration }}. At 60 s the partition halts.",
        ),
        Alert(
            "SessionaryComplianceShare",
            "sum by (instance) (rate(sessionary_processor_compliance_seconds_total[${window_s}s]))\n"
            "/ sum by (instance) (rate(sessionary_processor_work_seconds_total[${window_s}s])) > $compliance_ratio",
            "ticket_for_s",
            Severity.TICKET,
            "compliance checks take {{ $value | humanizePercentage }} of the work",
            "The processor {{ $labels.instance }} spends {{ $value | humanizePercentage }} of its work on retention "
            "and compliance tags.",
        ),
        Alert(
            "SessionaryContextOverLimit",
            "sum(sessionary_processor_sessions_over_context_limit) > $sessions_over_context_limit",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $value }} sessions hold more context than they may",
            "{{ $value }} live sessions report a context above their own limit (context_limit_bytes). The audit trail "
            "names each of them.",
        ),
        Alert(
            "SessionaryStateDiskLow",
            "min by (instance) (sessionary_processor_disk_free_bytes) < $disk_free_bytes",
            "page_for_s",
            Severity.PAGE,
            "the state folder of {{ $labels.instance }} is almost full",
            "{{ $value | humanize1024 }}B are free for the state of {{ $labels.instance }}. A full disk halts its "
            "partitions.",
        ),
        Alert(
            "SessionaryStateLarge",
            "sum by (instance) (sessionary_processor_stored_bytes) > $stored_bytes",
            "ticket_for_s",
            Severity.TICKET,
            "{{ $labels.instance }} stores {{ $value | humanize1024 }}B of state",
            "The rows of the partitions of {{ $labels.instance }} take {{ $value | humanize1024 }}B. A worker keeps "
            "them in memory, or in RocksDB, and another one must read them if this one dies.",
        ),
    ),
)
