"""Which threads run a call, and on which cores."""
