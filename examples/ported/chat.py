"""The chat service, ported: any of its processes answers any message of a chat.

uvicorn examples.ported.chat:app
"""

import time
import uuid

from fastapi import FastAPI
from pydantic import BaseModel

from sessionary.producers import SessionClient

app = FastAPI()
client = SessionClient(tenant_id="acme", service_id="chat", agent_id="chatbot")


class Message(BaseModel):
    """What a user says; without a chat's id a new chat begins."""

    chat_id: str | None = None
    user_id: str
    text: str


def ask_model(history: list[tuple[str, str]]) -> tuple[str, int, int]:
    """Stand in for a model: an answer, and its tokens."""
    time.sleep(0.2)
    return f"answer {len(history)}", 10 * len(history), 7


@app.post("/chat")
def chat(message: Message) -> dict[str, str]:
    """Answer one message."""
    chat_id = message.chat_id or f"chat-{uuid.uuid4()}"
    session = client.open(chat_id, user_id=message.user_id, resume=True)
    with session.turn():
        session.message("user", message.text)
        history = [(turn.role, str(turn.content)) for turn in session.conversation.read(40)]
        with session.llm("m-small") as call:
            text, call.tokens_in, call.tokens_out = ask_model(history)
        session.message("assistant", text)
    session.sync()  # the next message may reach another process
    session.lifecycle.detach()
    return {"chat_id": chat_id, "text": text}
