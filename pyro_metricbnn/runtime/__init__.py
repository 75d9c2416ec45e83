"""What every stage leans on: arguments that are checked, one thread at a time, random states, memory that runs out.

In: what callers pass, and blocks of code.  Out: the same, or an error that says what, why and what to do.
To change here: how a wrong argument is refused, what a forked process does first, what happens without memory.
"""
