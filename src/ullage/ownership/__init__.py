"""Whose memory it is: the roles of storages."""
