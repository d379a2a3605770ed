"""Telling people: what they must know (look, words), and how it reaches them (channels, child, send)."""
