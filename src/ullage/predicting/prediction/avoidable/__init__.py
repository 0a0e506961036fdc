"""The search for memory that a run could avoid at its peak, based on what the run did; requested with
`Request.diagnose`.
"""
