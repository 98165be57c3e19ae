"""The control API's page of a session's conversation.

    message_pages    the last turns, in order
    openapi          the page's part of the OpenAPI document

The judge numbers the turns and keeps the last of them: see `core.children.message`.
"""
