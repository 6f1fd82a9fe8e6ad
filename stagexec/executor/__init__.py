"""The prompt loop, the node visit and the queue. Host types reach it only through the `api` handed in."""
