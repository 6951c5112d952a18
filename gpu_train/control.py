"""What lies in a job's control folder, by which its runner, its agent and others tell each other how it is."""

from __future__ import annotations

AGENT_LOCK = "agent.lock"
"""Who holds its lock is the job's agent."""

BUSY_EXIT = 6
"""Exit code of an agent that found another one at work."""

END_FILE = "end.json"
"""How the job ended, for an agent that comes after the runner."""

KILL_FILE = "kill"
"""Somebody asked for the job to be killed."""
