"""The control API's pages of runs: what a session's runs are now, and what belongs to them.

    run_pages         one run, and the open runs of a session
    step_pages        the steps of a run
    call_pages        the reserved tool calls of a run, or of a session
    artifact_pages    the artifacts of a run, or of a session
    execution_page    a session's open runs with their steps and tool calls, in short
    task_pages        one task: a run that is asked for by its id alone
    openapi           the pages' part of the OpenAPI document

All but tasks are questions about one session: `session_questions` says who may ask, and which
worker answers.
"""
