"""Reads shell text as a shell would: what runs, with which words, touching which paths. Runs nothing."""
