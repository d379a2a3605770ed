"""The parts of the chaos run (bench/chaos.py): what is done to a desk, who keeps it running, and who judges."""
