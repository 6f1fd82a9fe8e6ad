"""Keeps waiting prompts to itself and hands them to the host's heap one by one, past `put`, as managers do.

Its methods are those of an object, which holds what it took the place of: a look at their code shows no call
of the host's.
"""

import collections
import heapq

from server import PromptServer


class Keeper:
    """Stands before the server's queue."""

    def __init__(self, queue):
        self.queue = queue
        self.held = {"put": queue.put, "get": queue.get}
        self.kept = collections.deque()
        queue.put, queue.get = self.put, self.get

    def put(self, item):
        with self.queue.mutex:
            if self.queue.queue or self.queue.currently_running:
                self.kept.append(item)
                self.queue.server.queue_updated()
                return
        self.held["put"](item)

    def get(self, timeout=None):
        with self.queue.mutex:
            if not self.queue.queue and self.kept:
                heapq.heappush(self.queue.queue, self.kept.popleft())
        return self.held["get"](timeout)


keeper = Keeper(PromptServer.instance.prompt_queue)
NODE_CLASS_MAPPINGS = {}
