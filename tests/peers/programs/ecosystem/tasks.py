"""Tasks for two prefork workers, and, as a program, who asks for them."""

import os

from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ["BROKER"])
app.conf.broker_connection_retry_on_startup = True
HEAP = {i: i * i for i in range(200_000)}


@app.task
def square(i):
    return HEAP[i]


if __name__ == "__main__":
    app.set_current()
    asked = [app.send_task("tasks.square", (i,)) for i in range(10)]
    print([it.get(timeout=60) for it in asked])
