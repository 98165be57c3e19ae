"""What an agent imports: `SessionClient`, `AsyncSessionClient`, their settings and errors."""

from sessionary.producers.async_client import AsyncSession, AsyncSessionClient
from sessionary.producers.client import SessionClient
from sessionary.producers.errors import (
    AuthenticationFailed,
    ClientClosed,
    DeliveryFailed,
    Invalid,
    ProducerError,
    QueueFull,
    Refused,
    SessionaryError,
    SessionEnded,
    SessionLost,
    SettingsError,
    Unavailable,
    VerdictPending,
)
from sessionary.producers.ports import Counters
from sessionary.producers.session.life import Session
from sessionary.producers.settings import ProducerSettings

__all__ = [
    "AsyncSession",
    "AsyncSessionClient",
    "AuthenticationFailed",
    "ClientClosed",
    "Counters",
    "DeliveryFailed",
    "Invalid",
    "ProducerError",
    "ProducerSettings",
    "QueueFull",
    "Refused",
    "Session",
    "SessionClient",
    "SessionEnded",
    "SessionLost",
    "SessionaryError",
    "SettingsError",
    "Unavailable",
    "VerdictPending",
]
