-- Arguments: id for new data, exchange, kind
-- Result: id of the data
--
-- Creates the exchange unless it exists. After a loss of data, the id is another one.

-- include data_id

first_write()
local id = ensure_data_id(ARGV[1])
if call('HSETNX', prefix .. 'x', ARGV[2], ARGV[3]) == 1 then call('HINCRBY', meta_key, 'v', 1) end
call('PEXPIRE', prefix .. 'x', UNUSED_KEY_MS)
return id
