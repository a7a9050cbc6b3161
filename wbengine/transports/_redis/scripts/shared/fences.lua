-- is_refused(id of a fence or '', number of a run) -> whether the number of the fence is higher

-- include rows

local fences = {}
local function is_refused(fence, number)
  if fence == '' then return false end
  if not fences[fence] then
    local row = read_row(fence)
    fences[fence] = row and tonumber(row.epoch) or 0
  end
  return fences[fence] > tonumber(number)
end
