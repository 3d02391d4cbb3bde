"""The operator's side effects: the API server, the pods' progress, the queue of work. Decisions are in `engine`."""
