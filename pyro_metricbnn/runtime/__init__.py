"""What every stage leans on: checked arguments, one thread at a time, random states, memory, bars.

In: what callers pass, and blocks of code.  Out: the same, or an error that says what, why and what to do.
To change here: how a wrong argument is refused, what a forked process does first, what happens without memory, which
fused operations of torch are written out for vmap, what a bar says.
"""
