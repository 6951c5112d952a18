"""Objects under keys, on every kind of backend: what sinks are made of."""
