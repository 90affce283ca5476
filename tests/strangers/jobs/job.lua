local t, s = {}, 0
for i = 0, 249999 do t["key " .. (i * 7919 % 1000003)] = {i, "v" .. i} end
for i = 0, 249999, 3 do t["key " .. (i * 7919 % 1000003)] = nil end
collectgarbage()
local n = 0
for i = 0, 249999 do local v = t["key " .. (i * 7919 % 1000003)]; if v then n = n + 1; s = (s * 31 + v[1]) % 1000000007 end end
print(n, s)
local l = {}
for i = 1, 500000 do l[i] = i * 7919 % 1000003 end
table.sort(l)
print(l[1], l[250000], l[500000])
