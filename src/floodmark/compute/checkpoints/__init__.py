"""What backfills store on their way: keys, the store, finding what is there, and how large one should be."""
