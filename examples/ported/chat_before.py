"""A chat service of FastAPI, whose handler runs in the thread pool. Without sessionary.

uvicorn examples.ported.chat_before:app
"""

import time
import uuid

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()


class Message(BaseModel):
    """What a user says; without a chat's id a new chat begins."""

    chat_id: str | None = None
    user_id: str
    text: str


HISTORY: dict[str, list[tuple[str, str]]] = {}


def ask_model(history: list[tuple[str, str]]) -> tuple[str, int, int]:
    """Stand in for a model: an answer, and its tokens."""
    time.sleep(0.2)
    return f"answer {len(history)}", 10 * len(history), 7


@app.post("/chat")
def chat(message: Message) -> dict[str, str]:
    """Answer one message."""
    chat_id = message.chat_id or f"chat-{uuid.uuid4()}"
    history = HISTORY.setdefault(chat_id, [])
    history.append(("user", message.text))
    text, _, _ = ask_model(history)
    history.append(("assistant", text))
    return {"chat_id": chat_id, "text": text}
