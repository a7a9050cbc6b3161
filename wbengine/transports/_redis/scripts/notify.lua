-- Repeats a wake-up whose receiver could not take messages. An empty queue gets none.

-- include queues

first_write()
if call('ZCARD', queue_key(queue)) > 0 then wake(queue) end
