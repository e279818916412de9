"""How the ranks of any collective object begin, wait, fail and end together.

* begin: `coordinator` (with `standalone_coordinator`, and `door` for a user's communicator), `header`, `rendezvous`,
  `exclusive` (one thread at a time), `interrupts` (signals held back meanwhile)
* wait: `wait`, and `watchdog` with the deadline
* fail: `together` (on all ranks or on none), `failures` (told without a header), `losses` (of ranks)
* end: `resource` (``with`` blocks), `departure` (the last header), `holding` (what all ranks free together),
  `kept_with` (objects freed with a communicator)
* share: `clocks` (how far they differ), `segments` (memory of a node's ranks), `objects` (what all objects of the
  library share)
"""
