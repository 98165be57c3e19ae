"""The story of one session, in words and as a picture.

    story_rows     a session's rows in ClickHouse
    story          rows to moments, one for each event or deadline
    event_text     the content of an event, in a few words
    trace          rows to numbered steps: query, calls, results, errors, retries
    page           the story as a page, with its picture
    comparison     two traces of work side by side

All but `story_rows` are pure.
"""
