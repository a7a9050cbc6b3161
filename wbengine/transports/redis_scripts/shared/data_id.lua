-- ensure_data_id(id for new data) -> id of the data, which is created if there is none

-- include queues

local function ensure_data_id(new_id)
  if call('HSETNX', meta_key, 'id', new_id) == 1 then
    call('HSET', meta_key, 'v', 0, 'f', FORMAT)
    call('PEXPIRE', meta_key, UNUSED_KEY_MS)
  end
  return call('HGET', meta_key, 'id')
end
