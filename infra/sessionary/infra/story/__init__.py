"""The story of one session: what happened, in words and as a picture.

    story_rows     a session's rows in ClickHouse
    story          rows to moments, one for each thing that happened
    event_text     what an event says, in a few words
    page           the story as a page, with its picture

All but `story_rows` are pure.
"""
