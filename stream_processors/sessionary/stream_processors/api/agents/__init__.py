"""The control API's pages of a session's agents.

    agent_pages    the agents of a session, and what one of them sees
    openapi        the pages' part of the OpenAPI document

Who sees what follows from the roles in the session's row: see `core.children.agent`.
"""
