"""A heap that workers share with their master, and an answer."""

HEAP = {i: f"value {i}" * 10 for i in range(200_000)}


def app(_, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    assert len(HEAP) == 200_000
    return [b"answer %d" % sum(range(1000))]
