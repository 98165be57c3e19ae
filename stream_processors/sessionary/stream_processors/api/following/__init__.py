"""Following a session: a stream that tells its committed state, and each change of it.

`GET /v1/sessions/{session_id}/follow` answers with `text/event-stream`.

    follow_page       answers a follower, by an own partition or by another worker
    open_streams      how many streams are open; ends them all
    openapi           the parts of the OpenAPI document
"""
