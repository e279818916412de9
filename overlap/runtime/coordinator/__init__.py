"""Where all ranks meet: headers that tell what each is about to do, deadlines, communicators."""
