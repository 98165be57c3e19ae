"""The story of one session: what happened, in words and as a picture.

    story_rows     a session's rows in ClickHouse
    story          rows to moments, one for each thing that happened
    event_text     what an event says, in a few words
    picture        moments as lanes, bars and a cost curve, in SVG
    page           a story as one HTML file that needs nothing else

All but `story_rows` are pure.
"""
