-- Argument: queue
--
-- Repeats a wake-up whose receiver could not take messages. An empty queue gets none.

-- include queues
-- include first_write

if call('ZCARD', P .. 'q:' .. ARGV[1]) > 0 then ring(ARGV[1]) end
