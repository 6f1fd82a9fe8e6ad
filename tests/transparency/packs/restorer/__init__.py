"""Puts the function under all wrappers of execution.execute back, as packs do that undo one another."""

import inspect

import execution

execution.execute = inspect.unwrap(execution.execute)
NODE_CLASS_MAPPINGS = {}
