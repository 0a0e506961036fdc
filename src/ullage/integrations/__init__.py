"""`ullage.Guard` inside training loops of others: Accelerate, Transformers, Lightning. Import the module you need."""
