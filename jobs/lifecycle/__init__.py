"""The only code that changes state: creating, claiming, arming, recording, deciding, and what staff may do.

Every function is keyword-only, takes `now`, opens its own short transaction, writes its events in it, and locks in one
order: jobs by id, then tasks by id. Nothing here talks to the network.
"""
