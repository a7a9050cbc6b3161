-- is_refused(id of a fence or '', number of a run) -> whether the number of the fence is higher

-- include server

local fences = {}
local function is_refused(fence, number)
  if fence == '' then return false end
  fences[fence] = fences[fence] or tonumber(call('HGET', prefix .. 'r:' .. fence, 'e') or 0)
  return fences[fence] > tonumber(number)
end
