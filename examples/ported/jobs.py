"""Jobs of Celery's workers, ported: a job that is done again charges no card twice.

celery -A examples.ported.jobs worker
"""

import time
from pathlib import Path

from celery import Celery

from sessionary.producers import SessionClient, tool

app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}
# A job whose worker dies is done again by another one.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)
client = SessionClient(tenant_id="acme", service_id="jobs", agent_id="worker")


@tool(effect="write")
def charge(order: str) -> str:
    """Charge the card of an order, which costs its owner money."""
    time.sleep(0.05)
    if order == "order 13":
        raise ValueError("the card has expired")
    with Path("charged.txt").open("a", encoding="utf-8") as charged:
        charged.write(f"{order}\n")
    return f"charged for {order}"


@app.task
def job(order: str) -> str:
    """Handle one order."""
    with client.open(order, user_id="jobs"):
        return charge(order)
