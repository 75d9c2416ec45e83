"""Files that cannot run code, and that an interrupted write cannot destroy.

In: a tree of tensors and plain values.  Out: one file, and from it the tree again, checked; a lock for one process.
To change here: the format. What a file means is with the stage whose state it is.
"""
