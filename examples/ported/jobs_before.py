"""Jobs of Celery's workers that charge cards. Without sessionary.

celery -A examples.ported.jobs_before worker
"""

import time
from pathlib import Path

from celery import Celery

app = Celery("jobs", broker="filesystem://")
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}
# A job whose worker dies is done again by another one.
app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True)


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
    return charge(order)
