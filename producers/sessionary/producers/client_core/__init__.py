"""What `SessionClient` and `AsyncSessionClient` are made of; both hold nothing but a core.

core           opens and closes what a process has once; parts of a fork; other tenants
sessions       makes sessions, attaches to those that exist, follows and reads any
task_reads     the questions about tasks
task_answers   what they are answered
library_place  the library of artifacts, by the place that a user names
async_opening  the part of `AsyncSessionClient` that is written by hand
"""
