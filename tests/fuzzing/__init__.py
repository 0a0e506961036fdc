"""Everything that ullage reads of others, changed at random: nothing may crash, wait, or grow beyond its bound.

`make fuzz-readers MINUTES=10` runs it with new seeds; continuous integration runs a little of it with a fixed one.
"""
