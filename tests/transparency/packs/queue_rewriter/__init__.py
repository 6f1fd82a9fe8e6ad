"""Replaces put, get and task_done on the server's queue with its own, which never call the host's."""

import copy
import heapq

from server import PromptServer

queue = PromptServer.instance.prompt_queue


def put(item):
    with queue.mutex:
        heapq.heappush(queue.queue, item)
        queue.server.queue_updated()
        queue.not_empty.notify()


def get(timeout=None):
    with queue.not_empty:
        while not queue.queue:
            if not queue.not_empty.wait(timeout=timeout):
                return None
        item = heapq.heappop(queue.queue)
        number = queue.task_counter
        queue.currently_running[number] = copy.deepcopy(item)
        queue.task_counter += 1
        queue.server.queue_updated()
        return item, number


def task_done(item_id, history_result, status, process_item=None):
    with queue.mutex:
        item = queue.currently_running.pop(item_id)
        item = process_item(item) if process_item else item
        queue.history[item[1]] = {"prompt": item, "outputs": {}, "status": status._asdict(), **history_result}
        queue.server.queue_updated()


queue.put, queue.get, queue.task_done = put, get, task_done
NODE_CLASS_MAPPINGS = {}
