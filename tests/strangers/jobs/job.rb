h = {}
250_000.times { |i| h["key #{i * 7919 % 1000003}"] = [i, i.to_s, :x] }
s = 0
h.keys.sort.each { |k| s = (s * 31 + h[k][0]) % 1000000007 }
h.delete_if { |_, v| v[0] % 3 == 0 }
GC.start
GC.compact if GC.respond_to?(:compact)
puts h.size, s, h.values.sum { |v| v[1].size }
pid = fork { puts h.values.sum(&:first); exit! 3 }
Process.wait(pid)
puts $?.exitstatus
puts Array.new(4) { |t| Thread.new { (1..50_000).map { |i| (i * t).to_s }.join.sum } }.map(&:value).inspect
