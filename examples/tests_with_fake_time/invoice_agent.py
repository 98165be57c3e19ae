"""An agent that reads an invoice, waits for a person's approval, and pays."""

from sessionary.producers import CleanupRequest, Limits, Session, SessionClient

LIMITS = Limits(idle_ms=600_000)  # ten minutes without work


class InvoiceAgent:
    """Works on one invoice per session. `open_files` has the files of sessions in progress."""

    def __init__(self, client: SessionClient) -> None:
        self._client = client
        self.open_files: dict[str, str] = {}  # by session id
        client.on_cleanup(self._release_files)

    def open_invoice(self, invoice: str, user_id: str) -> Session:
        """Begin a session for an invoice."""
        session = self._client.session(user_id=user_id, state={"invoice": invoice, "step": "opened"}, limits=LIMITS)
        self.open_files[session.session_id] = f"{invoice}.pdf"
        return session

    def read_invoice(self, session: Session) -> None:
        """Read the invoice by a model."""
        session.activity("llm", text="reading the invoice")
        session.update_state({**session.state, "step": "read", "amount": 120})

    def ask_person(self, session: Session) -> None:
        """Pause the session until a person has approved the payment."""
        session.pause("the payment needs approval", kind="review")

    def pay_invoice(self, session: Session) -> None:
        """Pay after the approval, and end the session."""
        amount = session.resume()["amount"]
        session.activity("tool", text=f"paid {amount}")
        session.complete()

    def _release_files(self, request: CleanupRequest) -> None:
        """Close the files of an ended session. Returning None means that every action is done."""
        self.open_files.pop(request.session_id, None)
