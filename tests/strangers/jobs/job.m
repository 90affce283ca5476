a = reshape(mod((1:9e6) * 7919, 1000003), 3000, 3000);
printf("%.0f\n", sum(a(:)));
s = sort(a(:));
printf("%.0f ", s(1:1000000:end)); printf("\n");
b = a(1:900, 1:900) + eye(900) * 1e7;
printf("%.6g\n", norm(b \ ones(900, 1)));
c = cell(1, 100000); for i = 1:100000, c{i} = sprintf("%d", i); end
printf("%d\n", numel([c{:}]));
